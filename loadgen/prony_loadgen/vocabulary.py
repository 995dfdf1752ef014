"""The words of made prompts: short and common, so that one is about one token.

The list is part of what a seed means: changing it changes every prompt.
"""

_TEXT = """
able act add age ago aid aim air all and ant any arm art ask away baby back bad bag ball
band bank bar base bat bay bed bell belt bend best big bill bird bit blue boat body bone
book born both bow box boy bread bring bus but buy cake call calm camp can cap car card care
case cash cat cell chair city clay clean clear club coal coat code cold come cook cool copy
corn cost cow crop cry cup cut dark data date day deal deep desk dish dog door down draw
dream dress drink drive drop dry duck dust duty each ear early east easy eat edge egg end
eye face fact fair fall far farm fast fat fear feed feel few field file fill film find fine
fire first fish fit five flag flat floor flow fly food foot form four free fresh from fruit
full fun game gate gift girl give glad glass go goal gold good grass gray great green grow
guest hair half hall hand hard hat head hear heat help here high hill hold hole home hope
horse hot hour house huge ice idea inch iron item jazz job join joy jump just keep key kid
kind king knee know lake lamp land large last late law lead leaf learn left leg less life
lift light like line lion list live long look lost lot love low luck lunch mail main make
man map mark meal mean meat meet milk mind mine mix
"""

WORDS = _TEXT.split()
